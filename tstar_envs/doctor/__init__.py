"""What ``python -m tstar_envs doctor`` looks at: packages, data, and an episode in each environment. Nothing here uses a network."""
