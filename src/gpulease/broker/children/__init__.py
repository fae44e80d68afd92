"""Small processes of the broker for what may hang: the driver, hooks, directories of users."""
