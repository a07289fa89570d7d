"""Who may do what: API keys, their scopes, their request rates, and the audit trail."""
