"""The catalogue of a shop: products and the search over them, made from files and kept in stores."""
