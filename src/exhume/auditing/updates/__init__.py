"""What clients send in federated learning."""
