"""What programs call: the verbs as functions, for Python and for all faces."""
