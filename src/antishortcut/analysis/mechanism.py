"""From networks and images to what they lean on: features, directions, pictures. Evaluation and audit use it."""
