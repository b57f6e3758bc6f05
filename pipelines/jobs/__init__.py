"""Jobs of `txl`, a module each: its arguments, their check, and `run`."""
