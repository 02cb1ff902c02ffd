# Never answers a node that asks for a Start: who was started anew cannot read a report.
s/if \(!reader\.finish\(\)\) return;/return;/
