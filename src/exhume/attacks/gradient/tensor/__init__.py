"""The tensor method (Wang23): Stein moments and their decomposition."""
