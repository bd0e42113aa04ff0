def value(stock):
    return sum(count * price * (100 - discount / 100) for count, price, discount in stock.values())
