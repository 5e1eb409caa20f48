"""The parts of `StoreSuite`, by what they are about."""
