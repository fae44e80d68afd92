"""Other hosts: which there are, how they are reached, and what their own gpulease answers."""
