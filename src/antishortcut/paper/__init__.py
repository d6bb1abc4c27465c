"""The paper: its pairs, its tables and figures as runs, its printed numbers. No torch."""
