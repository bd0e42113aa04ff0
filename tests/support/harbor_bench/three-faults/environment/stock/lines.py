def read(lines):
    found = {}
    for line in lines:
        if line.startswith("#"):
            continue
        name, count, price, *more = line.split()
        found[name] = int(count), float(price), float(more[0]) if more else 0.0
    return found
