package identity

// Here and Away are a relay's answers to a controller, by SeenProtocol.
const Here, Away = "here", "away"

// LoadUnknown is a relay's answer, by LoadProtocol, if it cannot tell how much of it is in use.
const LoadUnknown = "unknown"

// LoadCrowded is a second line of that answer: the relay holds more reservations than its share, and whoever has none there
// does better at another one.
const LoadCrowded = "crowded"
