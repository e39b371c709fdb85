package identity

// Here and Away are a relay's answers to a controller, by SeenProtocol.
const Here, Away = "here", "away"

// LoadUnknown is the first line of a relay's answer by LoadProtocol. Up to 0.2.0 a relay could answer with how much of it was
// in use, in percent.
const LoadUnknown = "unknown"

// LoadCrowded is a second line of that answer: the relay holds more reservations than its share, and whoever has none there
// does better at another one.
const LoadCrowded = "crowded"
