"""The page that `txl report` writes: what it reads of a run, its charts, its HTML."""
