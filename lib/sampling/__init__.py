"""Flow-matching sampling in plain NumPy: schedule, noise, guidance, Euler steps, pictures."""
