"""What all jobs share at the command line: arguments, exit codes, progress."""
