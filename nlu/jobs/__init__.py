"""Jobs that a launcher hands to a queue: submitted, recorded, followed, listed and cancelled."""
