"""What every other room speaks: records, the contract, results and their evidence, errors."""
