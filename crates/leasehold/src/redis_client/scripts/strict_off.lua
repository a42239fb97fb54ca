local frozen, extra, floor, born = 0, 0, ZERO, 0
