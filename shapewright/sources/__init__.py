"""Where tuned libraries come from for builds and models: services, directories, snapshots; and what was used."""
