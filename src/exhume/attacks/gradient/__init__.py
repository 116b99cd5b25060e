"""Records from a gradient (Wang23), and gradient matching as practised."""
