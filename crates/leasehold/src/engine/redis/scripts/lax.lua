local frozen, extra, floor = 0, 0, ZERO
