"""What an installation consists of, and how it is changed."""
