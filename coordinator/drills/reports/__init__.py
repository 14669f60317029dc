"""What a drill leaves for people: a page and a text, made of its run.json and its history: `page`, `markdown`."""
