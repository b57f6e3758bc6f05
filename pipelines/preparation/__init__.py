"""Options of `txl prepare`: their values, and which of them fit together."""
