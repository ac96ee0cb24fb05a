"""Device plugins: which devices there are, who has them, giving them to containers."""
