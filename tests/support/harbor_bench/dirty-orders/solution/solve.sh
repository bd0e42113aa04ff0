#!/bin/bash
python3 - <<'END'
import csv, json
rates, last = json.load(open("/app/rates.json")), {}
for row in csv.DictReader(open("/app/orders.csv")):
    if row["id"] not in last or row["time"] > last[row["id"]]["time"]:
        last[row["id"]] = row
sums = {}
for row in last.values():
    rate = rates.get(row["currency"].strip().upper())
    try:
        amount = float(row["amount"].replace(",", ""))
    except ValueError:
        continue
    if rate is not None:
        country = row["country"].strip().upper()
        sums[country] = sums.get(country, 0) + amount * rate
json.dump({name: round(sums[name], 2) for name in sorted(sums)}, open("/app/report.json", "w"))
END
