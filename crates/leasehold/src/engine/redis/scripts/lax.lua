local frozen, extra = 0, 0
