"""What tests read and compare with: data and models in miniature, slow references, a Hub, and processes."""
