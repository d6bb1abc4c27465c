"""What runs must survive, done to them: `python -m torture`. Results fill the table of docs/reliability.md."""
