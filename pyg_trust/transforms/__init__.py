"""PyG transforms."""
