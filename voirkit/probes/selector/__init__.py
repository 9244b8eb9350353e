"""The selector language: reads selectors, checks them against sources without running anything, and suggests some."""
