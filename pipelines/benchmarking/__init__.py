"""What `txl benchmark` measures, and the programs that do the work in processes of their own."""
