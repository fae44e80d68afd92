"""The commands of gpulimit on gpulease's queue: same words, same output, with Python 3.6 and newer."""
