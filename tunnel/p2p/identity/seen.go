package identity

// Here and Away are a relay's answers to a controller, by SeenProtocol.
const Here, Away = "here", "away"

// LoadUnknown is a relay's answer, by LoadProtocol, if it cannot tell how much of it is in use.
const LoadUnknown = "unknown"
