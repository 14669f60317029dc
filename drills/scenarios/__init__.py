"""The drills: what is done, and what must hold afterwards. Imports all other rooms of `drills` but its commands."""
