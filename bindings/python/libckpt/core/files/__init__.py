"""Files: saves that are captured, on their way to the names that a program reads."""
