import sys

from stock.lines import read
from stock.value import value

print(f"{value(read(open(sys.argv[1]))):.1f}")
