"""What Trunkline costs, beside the limit of the machine and beside its peers, in one run."""
