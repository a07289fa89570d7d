"""Who may do what: API keys, their scopes, how often they may ask, and the audit trail."""
