"""Where finished work is kept, and where independent work runs."""
