package api

// AgentsSelector and RevisionLabel are labels of the DaemonSets' pods.
const (
	AgentsSelector = "app.kubernetes.io/name=edgemesh,app.kubernetes.io/component in (agent,edge-agent)"
	RevisionLabel  = "controller-revision-hash"
)

// AgentPods are the pods of the DaemonSets of agents.
func AgentPods(namespace string) Kind {
	return Kind{Name: "pods", Kind: "Pod", Namespace: namespace, Selector: AgentsSelector, New: func() Object { return new(Pod) }}
}

// Pod is a core/v1 Pod.
type Pod struct {
	Meta   Meta      `json:"metadata"`
	Spec   PodSpec   `json:"spec"`
	Status PodStatus `json:"status"`
}

// PodSpec says where a pod runs.
type PodSpec struct {
	NodeName string `json:"nodeName"`
}

// PodStatus is what kubelet says of a pod.
type PodStatus struct {
	Conditions []Condition       `json:"conditions"`
	Containers []ContainerStatus `json:"containerStatuses"`
}

// ContainerStatus is what became of a container.
type ContainerStatus struct {
	RestartCount int            `json:"restartCount"`
	State        ContainerState `json:"state"`
	Last         ContainerState `json:"lastState"`
}

// ContainerState is running, terminated or, where both are nil, waiting.
type ContainerState struct {
	Running    *struct{}   `json:"running"`
	Terminated *Terminated `json:"terminated"`
}

// Terminated says how a container ended.
type Terminated struct {
	ExitCode int    `json:"exitCode"`
	Message  string `json:"message"`
}

// Metadata implements Object.
func (p *Pod) Metadata() *Meta { return &p.Meta }

// Revision is that of the DaemonSet which the pod is made of.
func (p *Pod) Revision() string { return p.Meta.Labels[RevisionLabel] }

// Ready reports whether p is.
func (p *Pod) Ready() bool {
	c := FindCondition(p.Status.Conditions, "Ready")
	return c != nil && c.Status == "True"
}

// FailingAgents is a revision of the DaemonSets' agents of which one crashed after it took over.
type FailingAgents struct {
	Revision string `json:"revision"`
	Node     string `json:"node"`
	Message  string `json:"message"`
}
