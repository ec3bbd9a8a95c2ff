"""Results as snapshots: parts that tasks stage, sorted files in the checkpoint, other stores, and what readers are shown of them."""
