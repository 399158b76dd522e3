"""Files of many formats as passages: found in folders, turned into text, and split along headings and sentences."""
