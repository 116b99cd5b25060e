"""Networks cut between a client and servers."""
