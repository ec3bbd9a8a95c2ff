"""A-DSP's algorithms as the paper prints them, where the engine's differ (:mod:`streamjoin.scheme`). Pure."""
