"""Where the training runs: strategies and what each replica keeps."""
