"""PyG layers and models."""
